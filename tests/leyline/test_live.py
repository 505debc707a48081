"""The live protocol: messages differ in their tags, close codes in their numbers."""

import msgspec
import pytest

from esper.leyline.live import CloseCode, ErrorFrame, Gap, Hello, ServerMessage, Subscription


@pytest.mark.parametrize(
    "message",
    [
        Hello(run_id="a", schema_version=1, last_seq=-1),
        Hello(run_id="a", schema_version=1, last_seq=7, is_subscribed=True),
        Gap(num_dropped=3, first_seq=4, last_seq=6),
        ErrorFrame(reason="not a subscription"),
    ],
)
def test_messages_of_the_server_are_distinguished_by_type(message: ServerMessage) -> None:
    encoded = msgspec.json.encode(message)
    assert msgspec.json.decode(encoded, type=ServerMessage) == message
    assert msgspec.json.decode(encoded)["type"] == type(message).__struct_config__.tag


def test_reason_fits_a_close_frame() -> None:
    # RFC 6455: a control frame has at most 125 bytes, two of them are the code.
    for code in CloseCode:
        assert 0 < len(code.reason.encode()) <= 123
    assert CloseCode.RUN_ENDED.reason == "run ended"


def test_application_codes_are_in_the_private_range_and_the_rest_is_registered() -> None:
    registered = {1000, 1001, 1008, 1011, 1012, 1013}
    assert all(code in registered or 4000 <= code <= 4999 for code in CloseCode)


def test_misspelt_filter_is_refused_instead_of_ignored() -> None:
    assert msgspec.json.decode(b"{}", type=Subscription) == Subscription()
    with pytest.raises(msgspec.ValidationError, match="env_id"):
        msgspec.json.decode(b'{"env_id": [1]}', type=Subscription)
