"""The remote teacher: a model on a server that speaks the Open Inference Protocol, which scores the rows.

Only jobs of the service can have it, since only the service may call other servers: see `app.remote`. For
core it is an external teacher, whose scores are in the data before anything is fitted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, Literal

from app.domain.origins import Origin
from core.errors import Fault
from core.parameters import Doc, Ge, Gt, Le, MaxLen, MinLen, Pattern, check_parameters
from core.teachers.outside import OutsideScores

_ORIGIN: Final = r"^https?://([A-Za-z0-9_-][A-Za-z0-9._-]{0,252}|\[[0-9A-Fa-f:.]{2,45}\])(:[0-9]{1,5})?/?$"
_NAME: Final = r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,199}$"
"""Pattern of names of models, versions and tensors.

They become parts of paths: no slashes, and no ``..`` alone.
"""

_MAX_VALUES: Final = 2**20


@dataclass(frozen=True, slots=True)
class RemoteScores(OutsideScores):
    """Scores that a model on a Triton, KServe or MLServer gives over HTTP, at an address that is allowed.

    The job sends its rows and takes the scores as those of ``scores``. They are stored batch by batch, so
    that a job that is interrupted does not ask again for what it has. Raises InvalidProblem.
    """

    name: ClassVar[str] = "remote"
    needs: ClassVar[frozenset[Literal["teacher_scores"]]] = frozenset()

    url: Annotated[
        str,
        Pattern(_ORIGIN),
        Doc("Address of the server without a path, https://triton.example.com:8000."),
    ]
    model: Annotated[str, Pattern(_NAME), Doc("Name of the model there.")]
    version: Annotated[str | None, Pattern(_NAME), Doc("Its version; null: as the server decides.")] = None
    input_name: Annotated[
        str | None, Pattern(_NAME), Doc("Its input; null: the only one that the server names.")
    ] = None
    output_name: Annotated[
        str | None, Pattern(_NAME), Doc("Output with the scores; null: the only one that the server gives.")
    ] = None
    columns: Annotated[
        tuple[str, ...] | None,
        MinLen(1),
        MaxLen(100_000),
        Doc("Class of each column of the output; null: the classes of the data set in their order."),
    ] = None
    batch: Annotated[int, Ge(1), Le(4096), Doc("Most rows in one request.")] = 256
    timeout: Annotated[float, Gt(0), Le(300), Doc("Longest time of one request, in seconds.")] = 60.0
    retries: Annotated[
        int,
        Ge(0),
        Le(20),
        Doc("How often a request is repeated after a timeout, 429 or a status of 500 or more."),
    ] = 6

    def __post_init__(self) -> None:
        check_parameters(self, "teacher", self._url_fault())

    def rows_of_a_request(self, columns: int, scores: int) -> int:
        """Number of rows in one request: ``batch``, or fewer so that it has at most a million numbers.

        columns: numbers of a row, d. scores: scores of a row, one for each column of the output.
        """
        return max(1, min(self.batch, _MAX_VALUES // max(columns, scores, 1)))

    def _url_fault(self) -> Fault | None:
        """The fault of an address that the pattern accepts: a port above 65535, or colons without IPv6."""
        try:
            Origin.of(self.url)
        except (AttributeError, ValueError) as error:
            return Fault("teacher.url", "bad_url", f"teacher.url: {error}")
        return None

    def metadata(self) -> dict[str, str | float | int]:
        """Names of teacher and model; it is unknown whether the model was trained on these rows."""
        return {"method": self.name, "model": self.model, "seen_rows": "unknown"}
