"""The messages of the Open Inference Protocol over gRPC, of its model repository, and of gRPC's health check.

Their classes are made from a table. Generated code would need one version of protobuf, and would conflict
with that of other programs in the process; the pool of these descriptors is private. Names and numbers of the
fields are those of ``inference.GRPCInferenceService``, ``grpc.health.v1.Health`` and ``google.rpc``. Only
these numbers and the types are transmitted, so values of enumerations are numbers here.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

TABLE: Final[dict[str, str]] = {
    "ServerLiveRequest": "",
    "ServerLiveResponse": "bool live = 1",
    "ServerReadyRequest": "",
    "ServerReadyResponse": "bool ready = 1",
    "ModelReadyRequest": "string name = 1; string version = 2",
    "ModelReadyResponse": "bool ready = 1",
    "ServerMetadataRequest": "",
    "ServerMetadataResponse": "string name = 1; string version = 2; repeated string extensions = 3",
    "ModelMetadataRequest": "string name = 1; string version = 2",
    "ModelMetadataResponse": "string name = 1; repeated string versions = 2; string platform = 3;"
    " repeated TensorMetadata inputs = 4; repeated TensorMetadata outputs = 5",
    "TensorMetadata": "string name = 1; string datatype = 2; repeated int64 shape = 3",
    "InferParameter": "parameter_choice: bool bool_param = 1; parameter_choice: int64 int64_param = 2;"
    " parameter_choice: string string_param = 3; parameter_choice: double double_param = 4;"
    " parameter_choice: uint64 uint64_param = 5",
    "InferTensorContents": "repeated bool bool_contents = 1; repeated int32 int_contents = 2;"
    " repeated int64 int64_contents = 3; repeated uint32 uint_contents = 4;"
    " repeated uint64 uint64_contents = 5; repeated float fp32_contents = 6;"
    " repeated double fp64_contents = 7; repeated bytes bytes_contents = 8",
    "ModelInferRequest": "string model_name = 1; string model_version = 2; string id = 3;"
    " map InferParameter parameters = 4; repeated InferInputTensor inputs = 5;"
    " repeated InferRequestedOutputTensor outputs = 6; repeated bytes raw_input_contents = 7",
    "InferInputTensor": "string name = 1; string datatype = 2; repeated int64 shape = 3;"
    " map InferParameter parameters = 4; InferTensorContents contents = 5",
    "InferRequestedOutputTensor": "string name = 1; map InferParameter parameters = 2",
    "ModelInferResponse": "string model_name = 1; string model_version = 2; string id = 3;"
    " map InferParameter parameters = 4; repeated InferOutputTensor outputs = 5;"
    " repeated bytes raw_output_contents = 6",
    "InferOutputTensor": "string name = 1; string datatype = 2; repeated int64 shape = 3;"
    " map InferParameter parameters = 4; InferTensorContents contents = 5",
    "ModelStreamInferResponse": "string error_message = 1; ModelInferResponse infer_response = 2",
    "ModelStatisticsRequest": "string name = 1; string version = 2",
    "ModelStatisticsResponse": "repeated ModelStatistics model_stats = 1",
    "ModelStatistics": "string name = 1; string version = 2; uint64 last_inference = 3;"
    " uint64 inference_count = 4; uint64 execution_count = 5; InferStatistics inference_stats = 6",
    "InferStatistics": "StatisticDuration success = 1; StatisticDuration fail = 2;"
    " StatisticDuration queue = 3; StatisticDuration compute_input = 4;"
    " StatisticDuration compute_infer = 5; StatisticDuration compute_output = 6",
    "StatisticDuration": "uint64 count = 1; uint64 ns = 2",
    "RepositoryIndexRequest": "string repository_name = 1; bool ready = 2",
    "RepositoryIndexResponse": "repeated ModelIndex models = 1",
    "ModelIndex": "string name = 1; string version = 2; string state = 3; string reason = 4",
    "ModelRepositoryParameter": "parameter_choice: bool bool_param = 1;"
    " parameter_choice: int64 int64_param = 2; parameter_choice: string string_param = 3;"
    " parameter_choice: bytes bytes_param = 4",
    "RepositoryModelLoadRequest": "string repository_name = 1; string model_name = 2;"
    " map ModelRepositoryParameter parameters = 3",
    "RepositoryModelLoadResponse": "",
    "RepositoryModelUnloadRequest": "string repository_name = 1; string model_name = 2;"
    " map ModelRepositoryParameter parameters = 3",
    "RepositoryModelUnloadResponse": "",
    "HealthCheckRequest": "string service = 1",
    "HealthCheckResponse": "int32 status = 1",
    "Status": "int32 code = 1; string message = 2; repeated Any details = 3",
    "Any": "string type_url = 1; bytes value = 2",
    "RetryInfo": "Duration retry_delay = 1",
    "Duration": "int64 seconds = 1; int32 nanos = 2",
}
"""The fields of each message as in a .proto file. Keys of ``map`` are texts; the part before a colon is the
oneof of a field.
"""

_PACKAGE: Final = "stms.inference"
_FIELD: Final = re.compile(r"(?:(\w+): )?(?:(repeated|map) )?(\w+) (\w+) = (\d+)")
_Field: Final = descriptor_pb2.FieldDescriptorProto
_SCALARS: Final = {
    name: getattr(_Field, f"TYPE_{name.upper()}")
    for name in ("bool", "bytes", "double", "float", "int32", "int64", "string", "uint32", "uint64")
}


@cache
def message_classes() -> dict[str, Any]:
    """The class of each message of `TABLE`, by name."""
    file = descriptor_pb2.FileDescriptorProto(name="stms_inference.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in TABLE.items():
        _describe(file.message_type.add(name=name), fields)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in TABLE
    }


def _describe(message: Any, fields: str) -> None:
    for oneof, label, kind, name, number in _FIELD.findall(fields):
        field = message.field.add(name=name, number=int(number), label=_Field.LABEL_OPTIONAL)
        if label:
            field.label = _Field.LABEL_REPEATED
        if label == "map":
            entry = message.nested_type.add(name=f"{name.capitalize()}Entry")
            entry.options.map_entry = True
            _describe(entry, f"string key = 1; {kind} value = 2")
            kind = f"{message.name}.{entry.name}"
        if kind in _SCALARS:
            field.type = _SCALARS[kind]
        else:
            field.type, field.type_name = _Field.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
        if oneof:
            if not message.oneof_decl:
                message.oneof_decl.add(name=oneof)
            field.oneof_index = 0
