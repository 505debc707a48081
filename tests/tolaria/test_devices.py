"""Devices: what is spelt right, what is there, and who lives where."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esper.leyline.errors import DeviceError, ExitCode
from esper.tolaria.devices import (
    parse_device,
    resolve_device,
    resolve_env_devices,
    validate_cuda_device,
)

CPU = torch.device("cpu")
KINDS = ("cpu", "cuda", "mps")


def have_cuda(monkeypatch: pytest.MonkeyPatch, num_devices: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: num_devices > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_devices)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cpu", "cpu"),
        ("cpu:0", "cpu"),
        ("cuda", "cuda"),
        ("cuda:0", "cuda:0"),
        ("cuda:17", "cuda:17"),
        ("mps", "mps"),
        ("mps:0", "mps"),
    ],
)
def test_device_is_read_whether_it_is_there_or_not(text: str, expected: str) -> None:
    assert parse_device(text) == torch.device(expected)


@pytest.mark.parametrize(
    "text",
    [
        *("", "gpu", "CPU", " cpu", "cpu\n", "xpu", "meta", "cpu:1", "mps:1"),
        *("cuda:", "cuda:-1", "cuda:01", "cuda:x", "cuda:99999", "cuda:0:1", "cuda:٣"),
    ],
)
def test_device_that_is_misspelt_is_refused(text: str) -> None:
    with pytest.raises(DeviceError, match="device ") as caught:
        parse_device(text)

    assert caught.value.exit_code is ExitCode.USAGE


@given(st.text(max_size=12).filter(lambda text: text.partition(":")[0] not in KINDS))
def test_any_other_text_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(DeviceError) as caught:
        parse_device(text)

    assert len(str(caught.value).splitlines()) == 1


def test_cuda_without_cuda_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    have_cuda(monkeypatch, 0)

    with pytest.raises(DeviceError, match="'cuda:0': this machine has no usable CUDA device"):
        validate_cuda_device(torch.device("cuda:0"))


def test_cuda_index_beyond_the_last_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    have_cuda(monkeypatch, 2)
    validate_cuda_device(torch.device("cuda:1"))

    with pytest.raises(DeviceError, match="the last CUDA device of this machine is cuda:1"):
        validate_cuda_device(torch.device("cuda:2"))


def test_index_is_asked_for_only_where_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    have_cuda(monkeypatch, 1)
    validate_cuda_device(torch.device("cuda"))

    with pytest.raises(DeviceError, match="such as cuda:0"):
        validate_cuda_device(torch.device("cuda"), needs_index=True)


def test_cpu_passes_the_check_for_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    have_cuda(monkeypatch, 0)

    validate_cuda_device(CPU, needs_index=True)


@pytest.mark.parametrize(("num_devices", "expected"), [(0, "cpu"), (1, "cuda:0"), (4, "cuda:0")])
def test_auto_takes_cuda_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch, num_devices: int, expected: str
) -> None:
    have_cuda(monkeypatch, num_devices)

    assert resolve_device("auto") == torch.device(expected)


def test_policy_device_without_an_index_is_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    have_cuda(monkeypatch, 2)

    assert resolve_device("cuda") == torch.device("cuda:0")


@pytest.mark.parametrize("is_there", [False, True])
def test_metal_is_refused_in_one_sentence_whether_it_is_there_or_not(
    is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: is_there)

    with pytest.raises(DeviceError, match=r"Metal has no float64, .*; use cpu"):
        resolve_device("mps")


def test_envs_are_on_the_policys_device_unless_configured_otherwise() -> None:
    assert resolve_env_devices(None, policy_device=CPU, n_envs=3) == (CPU,) * 3


def test_envs_take_the_named_devices_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    have_cuda(monkeypatch, 2)

    devices = resolve_env_devices(["cuda:1", "cuda:0"], policy_device=CPU, n_envs=5)

    assert [device.index for device in devices] == [1, 0, 1, 0, 1]


@pytest.mark.parametrize("names", [[], ["cpu"] * 3, ["cuda"], ["cuda:2"], ["gpu"]])
def test_devices_that_envs_cannot_live_on_are_refused(
    monkeypatch: pytest.MonkeyPatch, names: list[str]
) -> None:
    have_cuda(monkeypatch, 2)

    with pytest.raises(DeviceError):
        resolve_env_devices(names, policy_device=CPU, n_envs=2)
