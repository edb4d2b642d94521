"""What a person can do about an error, by its code, and about a health check that fails."""

from __future__ import annotations

from typing import Final

_BY_CODE: Final = {
    "scope_required": "Sign in with a key that has this scope, or ask an administrator for one.",
    "model_not_allowed": "This key is limited to other models. Ask an administrator for a key of this model.",
    "not_local": "Open the dashboard on the machine of the server, or start the server with API keys.",
    "cross_site": "Open the page again in this browser, and repeat what you did.",
    "rate_limited": "Wait a moment, then reload. An operator can raise the limit of the key.",
    "too_many_failures": "Wait a minute before you try another key.",
    "precondition_failed": "Somebody has changed it meanwhile. Go back, reload, and look at the new state.",
    "if_match_required": "Go back, reload, and look at the present state first.",
    "job_ended": "The job has ended meanwhile. Go back to see how.",
    "job_not_retriable": "Only failed, cancelled and partly successful jobs can be retried.",
    "job_has_version": "Delete the version first, or keep the job as its record.",
    "dataset_in_use": "Wait until the job has ended, or cancel it first.",
    "version_in_use": "Move the alias to another version first.",
    "alias_points_here": "Move the alias to another version first.",
    "quota_versions": "Delete versions that no alias points to, or ask an operator for a larger quota.",
    "quota_keys": "Revoke keys that are not needed, or ask an operator for a larger quota.",
    "quota_stored_bytes": "Delete data sets or versions, or ask an operator for a larger quota.",
    "database_unavailable": "Loaded models still answer queries. See the database's log, then reload.",
    "outcome_unknown": "Look whether the change was made before you repeat it.",
    "no_file": "Go back and choose a file.",
    "empty_file": "Choose a file that holds rows.",
    "file_too_large": "Send fewer rows or columns, or ask an operator to raise STMS_MAX_UPLOAD_BYTES.",
    "file_needs_too_much_memory": "Send fewer rows or columns, or ask an operator for more memory.",
    "file_takes_too_long": "Send it as .npz, safetensors or Parquet, which are read faster, or in parts.",
    "unreadable_file": "See that the program that wrote the file can read it, and send it in another format.",
    "truncated_upload": "The connection broke. Upload the file again.",
    "dataset_not_found": "It may have been deleted, or belong to another tenant. Choose another one.",
    "invalid_bundle": "Export the version again, or bring the file again: it may be damaged.",
    "schema_change": "To move the alias nevertheless, go back and tick the box of the form.",
    "gate_not_passed": "Evaluate the version against the present one on the data set of the gate.",
    "gate_failed": "Look at the evaluation. An administrator can move the alias nevertheless, with a reason.",
    "older_version": "To import an older version on purpose, tick the box of the form.",
    "bundle_too_large": "Ask an operator to raise STMS_MAX_BUNDLE_BYTES.",
    "newer_format": "Import it on a server of a later release.",
    "unsigned_bundle": "Ask whoever exported it to sign it, and put the signature into the file.",
    "wrong_signature": "Ask where the file comes from: do not import it elsewhere.",
    "key_ended": "Create a new key instead.",
}
_BY_STATUS: Final = {
    400: "Go back and correct the fields that are named.",
    403: "Sign in with a key that may do this.",
    404: "It may have been deleted, or belong to another tenant. Go back to the list.",
    405: "Use the buttons of the pages.",
    408: "The connection is slow: try again.",
    409: "Go back, reload, and look at the present state.",
    412: "It has changed meanwhile. Go back, reload, and decide again.",
    413: "Send less at once, or ask an operator to raise the limit.",
    415: "Choose a CSV, svmlight, .npz, safetensors or Parquet file, or say the format in the form.",
    422: "Go back and correct the fields that are named.",
    428: "Go back, reload, and look at the present state first.",
    429: "Wait a moment, then reload the page.",
    500: "The server's log names this request by its id.",
    501: "Do it on a server that trains.",
    503: "Wait a moment, then reload the page. The page Health shows what is missing.",
}
_BY_CHECK: Final = {
    "database": "See that the database runs, and that STMS_DATABASE_URL names it.",
    "schema": "Stop the servers and workers, run `stms db upgrade`, and start them again.",
    "job_engine": "Submitted jobs wait in the database. See the log of the job engine's database.",
    "workers": "Start a worker with `stms worker`, or both together with `stms serve`.",
    "registry": "Loaded models still answer. See the checks of the database above.",
    "process": "The process is ending: open a new connection.",
    "processes": "A process has ended; it is started again by itself. Its log says why.",
}
_BY_JOB_ERROR: Final = {
    "students_failed": "Open the failed classes below: each says why. Retry trains only the missing ones.",
    "students_not_good_enough": "The version is published. Look at the warnings before you use it.",
    "out_of_memory": "Give the workers more memory, or train fewer columns or classes at once.",
    "time_limit": "Raise the time limit of the job, or use coarser settings.",
    "internal_error": "Retry the job. If it fails again, the worker's log has the details.",
}


def for_error(status: int, code: str) -> str:
    """What to do about an error of a page; empty if nothing is known."""
    return _BY_CODE.get(code) or _BY_STATUS.get(status, "")


def for_check(name: str) -> str:
    """What to do about a health check that fails."""
    return _BY_CHECK.get(name, "See the log of the server.")


def for_job(code: str | None) -> str:
    """What to do about a job that has not succeeded."""
    return _BY_JOB_ERROR.get(code or "", "Retry the job: what is finished is kept.")
