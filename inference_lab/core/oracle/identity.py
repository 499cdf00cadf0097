"""Ids, models and roles of an answer's frames: what shows that two answers were put together."""

from inference_lab.core.apis.reading import Names
from inference_lab.core.oracle.verdict import Kind, Note, Report, shown


class Identity:
    """Whose frames they are, by what each says beside its text."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._known: dict[str, object] = {}
        self._named: Names | None = None
        self._has_text = self._last_has_role = False
        self._role_alone: tuple[int, int] | None = None

    def name(self, names: Names) -> None:
        """The names in a frame that says something."""
        if names == self._named:
            return
        self._named = names
        for name, value, kind in (
            ("id", names.id, Kind.ID_CHANGED),
            ("model", names.model, Kind.MODEL_CHANGED),
            ("created", names.created, None),
        ):
            if not isinstance(value, str | int) or value == "":
                continue
            known = self._known.setdefault(name, value)
            if known != value and kind:
                self._report.find(kind, f"the {name} changes: {shown(known)} becomes {shown(value)}")
            elif known != value:
                self._report.note(Note.CREATED_CHANGED)
            self._known[name] = value

    def text(self, *, has_role: bool) -> None:
        """A frame with text, with a role or without one."""
        if self._has_text and has_role:
            self._report.note(Note.ROLE_REPEATED)
        elif self._role_alone is not None:
            self._find_role(*self._role_alone)
        self._role_alone = None
        self._has_text, self._last_has_role = True, has_role

    def role(self, *, is_end: bool) -> None:
        """A role on its own. `is_end`: it comes with or after the end of the answer, where it opens nothing."""
        if not self._has_text:
            return
        if is_end:
            self._report.note(Note.ROLE_REPEATED)
        elif self._last_has_role:
            # A server that writes a role into every frame; the next text shows whether it is one.
            self._role_alone = self._role_alone or (self._report.offset, self._report.words_so_far())
            self._report.note(Note.ROLE_REPEATED)
        else:
            self._find_role()

    def _find_role(self, offset: int | None = None, word: int | None = None) -> None:
        sentence = "a role comes on its own after the first text"
        self._report.find(Kind.SECOND_ROLE, sentence, None, word, offset=offset)
