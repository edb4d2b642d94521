"""The Open Inference Protocol, version 2 (REST): for clients made for KServe, Triton and MLServer."""
