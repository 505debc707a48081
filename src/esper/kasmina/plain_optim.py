"""torch's own optimizers without torch's compiler.

Their public methods are decorated so that a compiled program leaves them out, and the first call of
any of them imports the compiler for it: 70 MiB and more than a second, in a system that never
compiles an optimizer. These classes are the same optimizers with the decorators taken off.
"""

import inspect

import torch
from torch.optim import SGD, AdamW, Optimizer

__all__ = ["PlainAdamW", "PlainSGD"]


class _Plain(Optimizer):
    add_param_group = inspect.unwrap(Optimizer.add_param_group)
    zero_grad = inspect.unwrap(Optimizer.zero_grad)
    state_dict = inspect.unwrap(Optimizer.state_dict)
    load_state_dict = inspect.unwrap(Optimizer.load_state_dict)


class PlainSGD(_Plain, SGD):
    """Stochastic gradient descent, bit for bit as torch's."""

    step = torch.no_grad()(inspect.unwrap(SGD.step))


class PlainAdamW(_Plain, AdamW):
    """Adam with decoupled weight decay, bit for bit as torch's."""

    step = torch.no_grad()(inspect.unwrap(AdamW.step))
