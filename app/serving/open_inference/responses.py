"""The documents that the Open Inference Protocol responds with; the OpenAPI document is derived from them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypeAlias, TypedDict

from msgspec import Meta

Count: TypeAlias = Annotated[int, Meta(ge=0)]


class InferenceError(TypedDict):
    """What every error looks like."""

    error: str


class InferenceServer(TypedDict):
    """The program and the protocol extensions that it supports."""

    name: str
    version: str
    extensions: list[str]


class InferenceLive(TypedDict):
    """The process responds."""

    live: bool


class InferenceReady(InferenceLive):
    """Whether requests should be sent to this process."""

    ready: bool


class InferenceModelReady(TypedDict):
    """A model, or the student of a class, can answer."""

    name: str
    ready: bool


class InferenceTensor(TypedDict):
    """An input or output of a model. shape: -1 for any size."""

    name: str
    datatype: str
    shape: list[int]
    parameters: NotRequired[dict[str, Any]]


_ModelClass = TypedDict(
    "_ModelClass", {"class": Annotated[str, Meta(description="The class, or how a request names one.")]}
)


class InferenceModelParameters(_ModelClass):
    """classes: the first 100 of class_count. columns: names that inputs of one column each may have."""

    classes: list[str]
    class_count: Count
    datatypes: list[str]
    columns: NotRequired[list[str]]


class InferenceModel(TypedDict):
    """Metadata of a model."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[InferenceTensor]
    outputs: list[InferenceTensor]
    parameters: InferenceModelParameters


class InferenceConfigReshape(TypedDict):
    """How a server of the protocol sees the dimensions of a tensor; empty: one value a row."""

    shape: list[int]


class InferenceConfigTensor(TypedDict):
    """An input or output without the dimension of the rows."""

    name: str
    data_type: str
    dims: list[int]
    reshape: NotRequired[InferenceConfigReshape]
    optional: NotRequired[bool]


class InferenceModelConfig(TypedDict):
    """What clients of Triton read of a model's configuration, with its names. max_batch_size: rows."""

    name: str
    platform: str
    backend: str
    max_batch_size: Count
    input: list[InferenceConfigTensor]
    output: list[InferenceConfigTensor]


class InferenceBinarySize(TypedDict):
    """Bytes of an output that follow the JSON."""

    binary_data_size: NotRequired[Count]


class InferenceOutput(TypedDict):
    """One output. data: one value a row, unless the output is binary."""

    name: Literal["match", "score", "probability", "threshold", "gate", "rejection"]
    datatype: Literal["BOOL", "FP64"]
    shape: list[int]
    parameters: NotRequired[InferenceBinarySize]
    data: NotRequired[list[float | bool]]


class InferenceAnswer(TypedDict):
    """The outputs of one request."""

    model_name: str
    model_version: str
    id: NotRequired[str]
    outputs: list[InferenceOutput]


class InferenceIndexEntry(TypedDict):
    """One published version."""

    name: str
    version: str
    state: str
    reason: str


class InferenceDuration(TypedDict):
    """A number of events and their nanoseconds together."""

    count: Count
    ns: Count


class InferenceDurations(TypedDict):
    """Requests, and the stages of those that succeeded."""

    success: InferenceDuration
    fail: InferenceDuration
    queue: InferenceDuration
    compute_input: InferenceDuration
    compute_infer: InferenceDuration
    compute_output: InferenceDuration


class InferenceVersionStatistics(TypedDict):
    """Statistics of one version."""

    name: str
    version: str
    last_inference: Annotated[int, Meta(ge=0, description="Milliseconds since the epoch.")]
    inference_count: Annotated[int, Meta(ge=0, description="Rows decided.")]
    execution_count: Count
    inference_stats: InferenceDurations
    batch_stats: list[Any]


class InferenceStatistics(TypedDict):
    """Statistics of the versions that a request selects."""

    model_stats: list[InferenceVersionStatistics]
