"""The inbox: numbering, the bound in bytes, syncs, closing and failure."""

import threading

import pytest
from tests.nissa.making import checkpoint_loaded, pruned

from esper.leyline.errors import ContractError
from esper.leyline.telemetry import Channel, Draft
from esper.nissa.bus.inbox import FIRST_GUESS_BYTES, Entry, Inbox

WAIT_S = 20.0


def inbox_of(max_bytes: int = 1_000_000) -> Inbox:
    return Inbox(max_bytes=max_bytes, next_seqs={Channel.RUN: 5, Channel.OPERATIONAL: 0})


def release(inbox: Inbox, entries: list[Entry]) -> None:
    inbox.release(len(entries), sum(entry.counted_bytes for entry in entries))


def test_each_channel_numbers_its_own_drafts_from_where_its_log_ends() -> None:
    inbox = inbox_of()
    payloads = (pruned(), checkpoint_loaded(), pruned())
    assert [inbox.put(Draft(payload)) for payload in payloads] == [5, 0, 6]
    assert (inbox.next_seq(Channel.RUN), inbox.next_seq(Channel.OPERATIONAL)) == (7, 1)


def test_take_returns_every_draft_once_in_order() -> None:
    inbox = inbox_of()
    for number in range(3):
        inbox.put(Draft(pruned(age_steps=number)))

    taken, is_sync_asked = inbox.take()

    assert [entry.seq for entry in taken[Channel.RUN]] == [5, 6, 7]
    assert [entry.draft for entry in taken[Channel.RUN]] == [
        Draft(pruned(age_steps=number)) for number in range(3)
    ]
    assert not is_sync_asked
    assert inbox.take() == ({Channel.RUN: [], Channel.OPERATIONAL: []}, False)


def test_room_ends_at_the_bound_and_returns_with_the_commit() -> None:
    inbox = inbox_of(max_bytes=2 * FIRST_GUESS_BYTES)
    inbox.put(Draft(pruned()))
    assert inbox.has_room
    inbox.put(Draft(pruned()))
    assert not inbox.has_room

    taken, _ = inbox.take()
    assert not inbox.has_room, "taken is not committed yet"
    release(inbox, taken[Channel.RUN])

    assert inbox.has_room
    assert (inbox.num_committed, inbox.num_waiting) == (2, 0)


def test_draft_counts_as_the_mean_size_of_its_type() -> None:
    inbox = inbox_of()
    inbox.put(Draft(pruned()))
    [first] = inbox.take()[0][Channel.RUN]
    first.route.note_size(FIRST_GUESS_BYTES + 100)
    inbox.put(Draft(pruned()))
    inbox.put(Draft(checkpoint_loaded()))

    taken, _ = inbox.take()

    assert taken[Channel.RUN][0].counted_bytes == pytest.approx(FIRST_GUESS_BYTES + 5)
    assert taken[Channel.OPERATIONAL][0].counted_bytes == FIRST_GUESS_BYTES


def test_full_inbox_wakes_the_writer_and_blocks_its_producer() -> None:
    inbox = inbox_of(max_bytes=1)
    inbox.put(Draft(pruned()))
    producer = threading.Thread(target=inbox.put, args=(Draft(pruned()),), daemon=True)
    producer.start()

    assert inbox.wakeup.wait(WAIT_S)
    assert inbox.num_accepted == 1
    release(inbox, inbox.take()[0][Channel.RUN])

    producer.join(WAIT_S)
    assert not producer.is_alive()
    assert inbox.num_accepted == 2


def test_wait_for_a_sync_covers_what_was_accepted_before_it() -> None:
    inbox = inbox_of()
    inbox.put(Draft(pruned()))
    results: list[bool] = []
    waiter = threading.Thread(target=lambda: results.append(inbox.wait_synced(WAIT_S)), daemon=True)
    waiter.start()
    assert inbox.wakeup.wait(WAIT_S)

    taken, is_sync_asked = inbox.take()
    assert is_sync_asked
    release(inbox, taken[Channel.RUN])
    inbox.note_synced()

    waiter.join(WAIT_S)
    assert results == [True]


def test_sync_that_does_not_come_is_reported() -> None:
    inbox = inbox_of()
    inbox.put(Draft(pruned()))
    assert not inbox.wait_synced(0.01)


def test_closed_inbox_refuses_drafts_and_is_drained_once_empty() -> None:
    inbox = inbox_of()
    inbox.put(Draft(pruned()))
    inbox.close()

    with pytest.raises(ContractError, match="the hub is closed"):
        inbox.put(Draft(pruned()))

    assert not inbox.is_drained
    inbox.take()
    assert inbox.is_drained


def test_failure_counts_everything_uncommitted_as_lost() -> None:
    inbox = inbox_of(max_bytes=1)
    inbox.put(Draft(pruned()))
    release(inbox, inbox.take()[0][Channel.RUN])
    inbox.put(Draft(pruned()))

    inbox.fail()

    assert inbox.put(Draft(pruned())) == 7
    assert (inbox.num_committed, inbox.num_lost, inbox.num_waiting) == (1, 2, 0)
    assert inbox.has_room
    assert inbox.wait_synced(WAIT_S)
