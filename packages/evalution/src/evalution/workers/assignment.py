"""Which worker gets what: calls, the items of streams, and groups of suspects."""

from __future__ import annotations

from collections import deque
from typing import Any

from evalution.workers.jobs import CallJob
from evalution.workers.request_stream import RequestStream, StreamItem
from evalution.workers.seats import Seat, SeatState
from evalution.workers.suspects import Suspects


class Assignment:
    """What waits for a worker, and the seats it may go to; all under the scheduler's lock."""

    def __init__(self, workers: int):
        self.seats = [Seat(index) for index in range(workers)]
        self.calls: deque[CallJob] = deque()
        self.streams: dict[RequestStream, None] = {}
        self.suspects: Suspects[Any] = Suspects()

    def has_room(self, stream: RequestStream) -> bool:
        """Whether another of the stream's items would go to a worker at once."""
        return not stream.backlog and self._seat_for(stream) is not None

    def assign(self, now: float) -> None:
        """Hand out all that there is a free worker for."""
        for seat in self.seats:
            if seat.state is SeatState.READY and not seat.in_flight:
                self._probe(seat, now)
        while self.calls and (free := [seat for seat in self.seats if seat.takes_work]):
            min(free, key=lambda seat: len(seat.in_flight)).call(self.calls.popleft(), now)
        for stream in self.streams:
            self.place_backlog(stream)
            stream.notify()

    def place_backlog(self, stream: RequestStream) -> None:
        """Hand out the stream's waiting items; after the last one, the sessions are told so."""
        while stream.backlog and (seat := self._seat_for(stream)) is not None:
            lane = seat.of_stream.get(stream)
            if lane is None:
                share = None if stream.batch_size is None else self._share(stream, seat)
                lane = seat.of_stream[stream] = seat.open_lane(stream, share)
            seat.place(lane, stream.backlog.popleft())
            stream.placed_on(seat)
        if stream.input_ended and not stream.backlog:
            for seat in self.seats:
                if lane := seat.of_stream.get(stream):
                    seat.end(lane)

    def abort(self, stream: RequestStream) -> None:
        for seat in self.seats:
            seat.abort(stream)

    def has_lanes(self, stream: RequestStream) -> bool:
        """Whether a worker is still at it."""
        return any(lane.stream is stream for seat in self.seats for lane in seat.lanes.values())

    def _probe(self, seat: Seat, now: float) -> None:
        seat.is_probing = False
        group = self.suspects.next_group()
        if group is not None:
            streams = {job.stream for job in group if isinstance(job, StreamItem)}
            shares = {
                stream: None if stream.batch_size is None else max(1, self._share(stream, seat))
                for stream in streams
            }
            seat.probe(group, shares, now)

    def _seat_for(self, stream: RequestStream) -> Seat | None:
        """The worker with the fewest of the stream's items that takes another."""
        if not stream.takes_more:
            return None
        best: Seat | None = None
        fewest = 0
        for seat in self.seats:
            lane = seat.of_stream.get(stream)
            if not seat.takes_work or (lane is not None and not lane.has_room):
                continue
            if stream.batch_size is not None and not self._share(stream, seat):
                continue
            if stream.stays_on(seat):
                return seat
            load = len(lane.open) if lane else 0
            if best is None or load < fewest:
                best, fewest = seat, load
        return best

    def _share(self, stream: RequestStream, seat: Seat) -> int:
        """How many of a capped stream's requests may run on this worker."""
        assert stream.batch_size is not None
        alive = [other for other in self.seats if other.state is not SeatState.RETIRED]
        rank = alive.index(seat)
        return stream.batch_size // len(alive) + (rank < stream.batch_size % len(alive))
