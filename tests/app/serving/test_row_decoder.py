"""The decoder of lists of numbers: compiled code and Python give the same bits."""

import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.serving import row_decoder
from app.serving.row_decoder import decode_list_in_python, decode_row_in_python
from tests.compiled import CAN_COMPILE, IS_COMPILED, compiled
from tests.sanitizers import run_sanitized

DIGITS = st.text("0123456789", max_size=25)
SIGNS = st.sampled_from(["", "-", "+"])


@st.composite
def number_texts(draw):
    """Numbers of JSON, and texts that are nearly some."""
    kind = draw(st.integers(0, 3))
    if kind == 0:
        return repr(draw(st.floats()))
    if kind == 1:
        return str(draw(st.integers()))
    text = draw(SIGNS) + draw(st.sampled_from(["0", "", "7", "12"])) + draw(DIGITS)
    if draw(st.booleans()):
        text += "." + draw(DIGITS)
    if kind == 3:
        text += draw(st.sampled_from("eE")) + draw(SIGNS) + draw(st.text("0123456789", max_size=4))
    return text


SPACES = st.text(" \n\t\r", max_size=2)


@st.composite
def list_texts(draw):
    parts = [draw(SPACES) + number + draw(SPACES) for number in draw(st.lists(number_texts(), max_size=6))]
    return f"[{','.join(parts)}]"


@compiled
@settings(max_examples=30 * settings().max_examples)
@given(text=list_texts(), n=st.integers(0, 6))
@example(text="[-0]", n=1)
@example(text="[-0.0, 0e999]", n=2)
@example(text="[9007199254740993, 9007199254740995]", n=2)
@example(text="[1e22, 1e23]", n=2)
@example(text="[18446744073709551615, 18446744073709551616]", n=2)
@example(text="[0.1, 2]", n=2)
def test_compiled_lists_have_the_bits_of_python(text, n):
    data = text.encode()
    for count in {n, text.count(",") + 1}:
        expected = decode_list_in_python(data, 0, count)
        assert row_decoder.decode_list(data, 0, count) == expected, (text, count)
        moved = None if expected is None else (expected[0], expected[1] + 7)
        assert row_decoder.decode_list(b"[1, 2] " + data + b", 3]", 7, count) == moved
        body = b'{"x":' + data + b"}"
        assert row_decoder.decode_row(body, count) == decode_row_in_python(body, count)


@compiled
@pytest.mark.parametrize("n_digits", [1, 6, 15, 16, 17, 18, 19, 20, 24])
def test_numbers_are_rounded_correctly(n_digits):
    """Python's float() is the reference; exponents pass the limits of each of the three ways."""
    random = Random(n_digits)
    for _ in range(2000):
        digits = str(random.randrange(10 ** (n_digits - 1), 10**n_digits))
        text = f"{digits}e{random.randint(-60, 60)}"
        numbers = struct.unpack("2d", row_decoder.decode_list(f"[{text}, -{text}]".encode(), 0, 2)[0])
        assert numbers == (float(text), -float(text)), text


@compiled
@pytest.mark.parametrize("exponent", range(-75, 76, 5))
def test_numbers_in_the_middle_are_rounded_to_even(exponent):
    """Halves between two neighbours, exactly and one digit beside them."""
    random = Random(exponent)
    for _ in range(200):
        middle = (2 * random.randrange(2**52, 2**53) + 1) * 2 ** max(exponent, 0)
        for number in (middle - 1, middle, middle + 1):
            if number < 10**19:
                text = str(number)
                assert struct.unpack("d", row_decoder.decode_list(f"[{text}]".encode(), 0, 1)[0])[0] == float(
                    text
                )


BODIES = [
    (b'{"x": [1, 2]}', [1, 2]),
    (b' {\n"x"\t:\r[ 1.5e1 ,-2 ] } ', [15, -2]),
    (b'{"x": [1, 2, 3]}', None),
    (b'{"x": [1]}', None),
    (b'{"x": []}', None),
    (b'{"x": [1, 2]} 1', None),
    (b'{"x": [1, 2]', None),
    (b'{"x": [1, 2],}', None),
    (b'{"x": [1, 2], "explain": true}', None),
    (b'{"x": [1 2]}', None),
    (b'{"x": [1, 02]}', None),
    (b'{"x": [1, 2.]}', None),
    (b'{"x": [1, .2]}', None),
    (b'{"x": [1, +2]}', None),
    (b'{"x": [1, 2e]}', None),
    (b'{"x": [1, 2e+]}', None),
    (b'{"x": [1, 1e400]}', None),
    (b'{"x": [1, 1e100]}', None),
    (b'{"x": [1, NaN]}', None),
    (b'{"x": [1, Infinity]}', None),
    (b'{"x": [1, null]}', None),
    (b'{"x": [1, "2"]}', None),
    (b'{"x": [1, 2\x00]}', None),
    (b'{"x": [1, 2]}\x00', None),
    (b'{"y": [1, 2]}', None),
    (b"\xef\xbb\xbf[1, 2]", None),
    (b"", None),
]


@pytest.mark.parametrize(("body", "numbers"), BODIES)
@pytest.mark.parametrize("decode", [row_decoder.decode_row, decode_row_in_python])
def test_only_one_row_of_so_many_numbers_is_decoded(decode, body, numbers):
    assert decode(body, 2) == (None if numbers is None else struct.pack("2d", *numbers))


@pytest.mark.parametrize("decode", [row_decoder.decode_list, decode_list_in_python])
def test_a_list_begins_at_its_bracket(decode):
    text = b'{"data": [1, 2], "shape": [2]}'
    assert decode(text, 9, 2) == (struct.pack("2d", 1, 2), 15)
    for start in (-1, 0, 8, 10, len(text), len(text) + 1):
        assert decode(text, start, 2) is None


@compiled
def test_text_that_ends_anywhere_is_refused():
    """Every start of a body, and every body with one byte changed, gives what Python gives."""
    random = Random(1)
    body = b'{"x": [1.25, -3e-5, 12345678901234567890123, 0.1]}'
    for end in range(len(body)):
        assert row_decoder.decode_row(body[:end], 4) is None
        changed = body[:end] + bytes([random.randrange(256)]) + body[end + 1 :]
        assert row_decoder.decode_row(changed, 4) == decode_row_in_python(changed, 4), changed


@compiled
@pytest.mark.parametrize("arguments", [(), (b"{}",), (b"{}", "2"), (b"{}", 2**80), (b"{}", 1, 1)])
def test_wrong_arguments_are_errors(arguments):
    with pytest.raises((TypeError, OverflowError)):
        row_decoder.decode_row(*arguments)


SANITIZED = """
import random
chars = b'01234567890123456789..eE+-, \\n[]{}"x:a\\x00\\xff'
made = random.Random(1)
for _ in range(200_000):
    text = b"[" + bytes(made.choices(chars, k=made.randrange(60))) + made.choice([b"]", b""])
    if made.random() < 0.5:
        text = b"[" + b",".join(b"%d.%de%d" % (made.randrange(10**made.randrange(1, 30)),
            made.randrange(10**made.randrange(1, 30)), made.randrange(-99, 99)) for _ in range(3)) + b"]"
    for n in (1, 3, text.count(b",") + 1):
        module.decode_list(text, made.choice([0, 0, 0, 5, len(text)]), n)
        module.decode_row(b'{"x":' + text + b"}", n)
"""


@pytest.mark.long
def test_the_address_and_undefined_behaviour_sanitizers_find_nothing(tmp_path):
    run_sanitized(Path(row_decoder.__file__).with_name("_row_decoder.c"), SANITIZED, tmp_path)


@pytest.mark.skipif(not CAN_COMPILE, reason="There is no C compiler, or there are no headers of Python.")
def test_an_installation_where_there_is_a_compiler_is_compiled():
    assert IS_COMPILED


@pytest.mark.long
def test_a_wheel_without_a_compiler_works_in_python(tmp_path):
    root = Path(row_decoder.__file__).parents[2]
    source, wheels, unpacked = tmp_path / "source", tmp_path / "wheels", tmp_path / "unpacked"
    for name in ("app", "core", "migrations", "stms", "stms_client"):
        shutil.copytree(root / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(root / name, source)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", wheels, source], check=True, env=os.environ | {"CC": "false"})
    [wheel] = wheels.iterdir()
    shutil.unpack_archive(wheel, unpacked, "zip")
    assert not list(unpacked.rglob("*.so"))
    program = (
        "from stms.app.serving import row_decoder; from stms.core.packed import single_text, trees;"
        "print(row_decoder.IS_COMPILED, single_text.IS_COMPILED, trees.IS_COMPILED,"
        " row_decoder.decode_row(b'{\"x\":[1]}', 1), len(single_text.SingleTexts([]).find('a')[0]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=unpacked, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"False False False {struct.pack('d', 1)!r} 0\n"
