"""A client that applies the reported changes has the same section as the server."""

from hypothesis import given
from hypothesis import strategies as st

from esper.karn.view.change_versions import ChangeVersions

keys = st.integers(0, 5)
operations = st.lists(st.tuples(st.sampled_from(["touch", "drop", "read"]), keys), max_size=40)


@given(operations)
def test_patches_keep_a_client_equal_to_the_section(steps: list[tuple[str, int]]) -> None:
    marks, section = ChangeVersions(), dict[int, int]()
    client, client_version = dict[int, int](), -1
    for version, (action, key) in enumerate(steps):
        if action == "touch":
            section[key] = version
            marks.touch(key, version)
        elif action == "drop" and key in section:
            del section[key]
            marks.drop([key], version)
        elif action == "read":
            changed = marks.since(client_version)
            patch = section if changed is None else {item: section[item] for item in changed}
            client = dict(patch) if changed is None else {**client, **patch}
            client_version = version
            assert client == section


def test_new_client_needs_the_whole_section() -> None:
    marks = ChangeVersions()
    marks.touch(1, 0)
    assert marks.since(-1) is None
    assert marks.since(0) == []


def test_only_clients_older_than_a_removal_need_the_whole_section() -> None:
    marks = ChangeVersions()
    for key in range(3):
        marks.touch(key, key)
    marks.drop([0], 3)
    marks.touch(2, 4)

    assert marks.since(2) is None
    assert marks.since(3) == [2]
    assert marks.since(4) == []
