"""What training a host without seeds costs, estimated from one forward pass."""

import torch
from torch import Tensor, nn

from esper.leyline.tasks import ModuleHostSpec
from esper.runtime.tasks import registered_task
from esper.simic.training.assembly.worker_assembly import env_context
from esper.simic.training.assembly.worker_setup import WorkerSetup
from esper.simic.training.env_factory import build_model

__all__ = ["host_flop_per_sample"]


def host_flop_per_sample(setup: WorkerSetup) -> float | None:
    """Return the training FLOP per target of a host without seeds; None where it is not counted.

    Convolutions and linear layers are counted, attention is not: twice their multiplications
    forward, and the same again for the gradients of weights and of inputs. torch's own counter
    would be exact, but it imports the compiler, which takes longer than some runs. A probe has no
    network, and one of the user's own may fail, which is for its env to report.
    """
    has_own_host = isinstance(setup.task.host, ModuleHostSpec) or (
        registered_task(setup.job.training.task).build_host is not None
    )
    if has_own_host or setup.probe is not None:
        return None
    inputs, targets = next(iter(setup.val_batches.batches(round=0, step=0)))[0]
    model = build_model(env_context(setup), 0, 0).to(inputs.device).eval()
    counter = _Counter(inputs)
    hooks = [
        module.register_forward_hook(counter)
        for module in model.modules()
        if isinstance(module, nn.Conv2d | nn.Linear)
    ]
    with torch.inference_mode():
        model(inputs[:1])
    for hook in hooks:
        hook.remove()
    return counter.num_flop / targets[:1].numel()


class _Counter:
    """A forward hook that adds up the training FLOP of layers."""

    def __init__(self, inputs: Tensor) -> None:
        self.num_flop = 0
        # Gradients end at the first layer, unless an embedding comes before it.
        self._is_first = inputs.is_floating_point()

    def __call__(
        self, module: nn.Conv2d | nn.Linear, inputs: tuple[Tensor], output: Tensor
    ) -> None:
        weights_per_output = module.weight[0].numel()
        num_products = 2 if self._is_first else 3
        self._is_first = False
        self.num_flop += num_products * 2 * output.numel() * weights_per_output
