"""Where ended calls go, for unit tests: records what is submitted, and finalizes nothing."""


class FakeFinalizer:
    """The part of FinalizationWorker that the call manager uses."""

    def __init__(self, *, is_shared: bool = False) -> None:
        self.is_shared = is_shared
        self.submitted = []
        self.contributed = []

    def submit(self, session, recorder=None, *, kept=True, on_started=lambda: None, first=None) -> None:
        self.submitted.append(session)
        on_started()

    def contribute(self, session, over) -> None:
        self.contributed.append(session)
