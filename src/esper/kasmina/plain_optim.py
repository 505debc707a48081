"""PyTorch's optimizers without the import of its compiler.

Their public methods are decorated to exclude them from compilation, and the first call of any of
them imports the compiler: 70 MiB and more than a second, although Esper never compiles an
optimizer. These classes are the same optimizers without the decorators.
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
    """SGD, bit-identical to torch's."""

    step = torch.no_grad()(inspect.unwrap(SGD.step))


class PlainAdamW(_Plain, AdamW):
    """AdamW, bit-identical to torch's."""

    step = torch.no_grad()(inspect.unwrap(AdamW.step))
