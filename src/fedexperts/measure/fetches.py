"""Who fetched what from whom: one row per fetch."""

from fedexperts.measure.journal import Journal
from fedexperts.methods import Want

FETCHES = "fetches.csv"
FETCH_COLUMNS = ("round", "client", "peer", "what")


class Fetches(Journal):
    """Keeps the file `fetches.csv`."""

    columns = FETCH_COLUMNS

    def fetched(self, round_number: int, client: int, want: Want) -> None:
        self.note(round_number, client, want.peer, want.what)
