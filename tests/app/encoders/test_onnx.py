"""Own encoders: what the check refuses, what the trial in a child refuses, and the bits of a good one."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
from onnx import helper

from app.domain.errors import InvalidRequest, Unavailable
from app.encoders import child, faults, process
from app.encoders.faults import EncoderFailed
from app.encoders.messages import Order
from app.encoders.onnx_check import check_onnx, require_picture_input
from app.encoders.picture_input import SCALINGS, picture_input, scaled
from app.encoders.pixels import decode
from app.encoders.pool import EncoderPool
from app.encoders.probes import probe_pictures
from app.encoders.specification import RND, EncoderSpecification
from tests.app.encoders.onnx_files import COSTLY, HOSTILE, SIDE, model, network
from tests.pictures import flat_png, good


def specification(file: bytes, **more) -> EncoderSpecification:
    own = EncoderSpecification("own", "d" * 64, 0, side=SIDE, scaling="imagenet", output="y", size=len(file))
    return replace(own, **more)


@pytest.fixture
def pool() -> Iterator[EncoderPool]:
    made = EncoderPool(cache_bytes=0, file=lambda digest: network())
    yield made
    made.close_now()


def refusal(call, *arguments) -> str:
    with pytest.raises(InvalidRequest) as caught:
        call(*arguments)
    assert caught.value.message[-1] in ".'"
    return caught.value.reason


def test_hostile_files_get_their_codes():
    assert {name: refusal(check_onnx, make()) for name, (_, make) in HOSTILE.items()} == {
        name: code for name, (code, _) in HOSTILE.items()
    }


def test_a_good_file_is_described():
    summary = check_onnx(network())
    assert (summary.opset, summary.nodes, len(summary.tensors)) == (13, 6, 2)
    assert summary.operators == {"Conv", "Relu", "GlobalAveragePool", "Flatten"}
    assert summary.inputs == [("image", 1, (-1, 3, SIDE, SIDE))]
    assert require_picture_input(summary, SIDE, "") == "y"


@pytest.mark.parametrize(
    ("side", "output", "more", "code"),
    [
        (64, "", {}, "bad_encoder_input"),
        (SIDE, "", {"sides": (1, SIDE, SIDE, 3)}, "bad_encoder_input"),
        (SIDE, "", {"kind": 10}, "bad_encoder_input"),
        (SIDE, "z", {}, "bad_encoder_output"),
    ],
)
def test_a_file_for_other_inputs_is_refused(side, output, more, code):
    file = model([helper.make_node("Relu", ["image"], ["y"])], **more)
    assert refusal(require_picture_input, check_onnx(file), side, output) == code


def test_mutated_files_are_checked_or_refused():
    """Whatever the bytes are, the check ends with a summary or a refusal."""
    rng, file = random.Random(0), network(width=16)
    small = file[:200] + file[-400:]
    for _ in range(3000):
        data = bytearray(small)
        for _ in range(rng.choice((1, 2, 8))):
            data[rng.randrange(len(data))] = rng.randrange(256)
        with contextlib.suppress(InvalidRequest):
            check_onnx(bytes(data))


@pytest.mark.parametrize("text", ["", "image:1x1:rgb:unit", "image:32x64:rgb:unit", "image:32x32:rgb:other"])
def test_a_wrong_input_is_refused(text):
    assert refusal(picture_input, text) == "bad_encoder_input"


@pytest.mark.parametrize(("scaling", "order"), [("imagenet", "rgb"), ("bytes", "bgr")])
def test_an_own_encoder_gives_the_bits_of_its_file(scaling: str, order: str, pool: EncoderPool):
    assert {"imagenet", "bytes"} < set(SCALINGS)
    wanted = picture_input(f"image:{SIDE}x{SIDE}:{order}:{scaling}:crop")
    assert wanted == (SIDE, order, scaling, True)
    encoder = specification(network(), order=order, scaling=scaling, crop=True)
    complete = pool.trial(encoder, network())
    assert (complete.width, len(complete.probe)) == (64, 64)
    [answer] = pool.vectors(complete, [good()["jpeg"]], tenant="t")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    session = onnxruntime.InferenceSession(network(), options, providers=["CPUExecutionProvider"])
    pixels = decode(good()["jpeg"], SIDE, crop=True, bicubic=True)
    numbers = scaled(pixels, order, scaling)
    mean, divisor = (np.array(part, np.float32) for part in SCALINGS[scaling])
    red = numbers[0, 0 if order == "rgb" else 2]
    assert np.allclose(red * divisor[0] + mean[0], pixels[..., 0], atol=1e-3)
    [expected] = session.run(["y"], {"image": numbers})
    assert answer.tobytes() == expected.tobytes()


@pytest.mark.parametrize("name", COSTLY)
def test_a_trial_refuses_what_the_check_cannot_see(
    name: str, pool: EncoderPool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(process, "SECONDS", 0.5)
    code, make = COSTLY[name]
    file = make()
    check_onnx(file)
    assert refusal(pool.trial, specification(file), file) == code


async def test_an_encoder_that_dies_leaves_the_others_alone(monkeypatch: pytest.MonkeyPatch):
    """Its file passes the check, and its processor time ends with the kernel's signal."""
    monkeypatch.setattr(process, "SECONDS", 0.3)
    file = COSTLY["endless products"][1]()
    pool = EncoderPool(file=lambda digest: file)
    try:
        expected = await pool.vector(RND, good()["png"], tenant="other")
        [pid] = pool.pids
        bad = specification(file, width=4096)
        with pytest.raises(Unavailable) as caught:
            await pool.vector(bad, good()["png"], tenant="t")
        assert caught.value.reason == "encoder_unavailable"
        assert pid in pool.pids
        assert (await pool.vector(RND, good()["png"], tenant="other")).tobytes() == expected.tobytes()
    finally:
        await pool.close()


def test_pictures_that_are_broken_are_faults_of_own_encoders_too(pool: EncoderPool):
    complete = pool.trial(specification(network()), network())
    answers = pool.vectors(complete, [flat_png(64, 64, 8, 2, rows=0), good()["png"]], tenant="t")
    assert answers[0].code == "broken_image"
    assert answers[1].shape == (64,)


def test_without_seccomp_own_encoders_do_not_run(pool: EncoderPool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(process, "COMMAND", (*process.COMMAND[:2], "-c", WITHOUT_SECCOMP))
    with pytest.raises(Unavailable) as caught:
        pool.trial(specification(network()), network())
    assert caught.value.reason == "sandbox_missing"
    assert "STMS_ENCODER_SANDBOX=limits" in caught.value.message
    assert pool.vectors(RND, [probe_pictures()[0]], tenant="t")[0].size == RND.width
    allowed = EncoderPool(sandbox="limits", file=lambda digest: network())
    try:
        assert allowed.trial(specification(network()), network()).width == 64
    finally:
        allowed.close_now()


WITHOUT_SECCOMP = """
from app.encoders import child, sandbox
sandbox._filter_calls = lambda: False
child.main()
"""


def test_without_the_library_of_onnx_files_the_refusal_says_how_to_get_it(pool, monkeypatch):
    monkeypatch.setattr(faults, "find_spec", lambda name: None if name == "onnxruntime" else object())
    assert refusal(pool.trial, specification(network()), network()) == "encoders_not_installed"


def test_a_child_refuses_an_encoder_that_is_slow_or_not_the_same_twice():
    order = Order(specification(network()), 1, 1.0, "seccomp", is_trial=True)
    numbers = iter(np.arange(64 * 100, dtype=np.float32).reshape(100, 64))
    with pytest.raises(EncoderFailed) as caught:
        child._ready(lambda picture: next(numbers), order, "seccomp")
    assert caught.value.code == "encoder_unstable"

    def slow(picture: bytes) -> np.ndarray:
        child.time.process_time()
        return np.zeros(64, np.float32)

    with pytest.MonkeyPatch.context() as patch:
        clock = iter(range(100))
        patch.setattr(child.time, "process_time", lambda: float(next(clock)))
        with pytest.raises(EncoderFailed) as caught:
            child._ready(slow, order, "seccomp")
    assert caught.value.code == "encoder_too_slow"
