"""Writes verdicts.txt: safetensors files, good and bad, with what the Rust reader says to each.

    python make_verdicts.py            (needs the package safetensors; the output names the version it was made with)

One file a line: `accept` or `reject`, a name, the file's bytes in base64. header_test.cc replays them, so that the C++
reader is held against the Rust one without Python. Cases by hand cover each rule; seeded mutations and the fuzzer's corpus look for the rest.
"""

import base64
import random
import struct
from pathlib import Path

import safetensors

SEED = 20240607
MUTATIONS = 1000


def pack(header, data=b"", length=None):
    if isinstance(header, str):
        header = header.encode()
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def tensor(dtype="F32", shape="[1]", offsets="[0,4]"):
    return '{"dtype":"%s","shape":%s,"data_offsets":%s}' % (dtype, shape, offsets)


def one(value, data=b"\0" * 4, name="a"):
    return pack('{"%s":%s}' % (name, value), data)


def by_hand():
    ok = tensor()
    d4, d8 = b"\0" * 4, b"\0" * 8
    good = pack('{"a":%s}' % ok, d4)
    # The frame.
    yield "empty file", b""
    yield "seven bytes", b"\0" * 7
    yield "length zero", pack("")
    yield "length beyond the file", pack("{}", length=3)
    yield "length 100000001", pack("{}", length=100_000_001)
    yield "length 2^63", pack("{}", length=2**63)
    yield "length 2^64-1", pack("{}", length=2**64 - 1)
    yield "length one short", pack('{"a":%s}' % ok, d4, length=len(ok) + 5)
    yield "header alone", pack('{"a":%s}' % ok)
    yield "one byte short", good[:-1]
    yield "one byte more", good + b"\0"
    yield "good", good
    yield "empty object", pack("{}")
    yield "empty object, data", pack("{}", b"x")
    # JSON.
    for label, header in [
        ("array", "[]"), ("null", "null"), ("number", "1"), ("text", '"a"'), ("nothing", " "), ("two objects", "{}{}"),
        ("leading space", " \n\t\r{}"), ("trailing space", "{} \n\t\r"), ("trailing word", "{} x"), ("vertical tab", "{}\v"),
        ("byte order mark", b"\xef\xbb\xbf{}"), ("trailing NUL", b"{}\0"), ("leading NUL", b"\0{}"),
        ("NUL padding", b"{}\0\0\0\0"), ("not UTF-8", b'{"__metadata__":{"\xff":"b"}}'),
        ("overlong UTF-8", b'{"__metadata__":{"\xc0\x80":"b"}}'), ("coded surrogate", b'{"__metadata__":{"\xed\xa0\x80":"b"}}'),
        ("UTF-8", '{"__metadata__":{"\u00e9\u4e16\U0001f600":"b"}}'), ("lone high surrogate", '{"__metadata__":{"\\ud800":"b"}}'),
        ("lone low surrogate", '{"__metadata__":{"\\udc00":"b"}}'), ("surrogate pair", '{"__metadata__":{"\\ud83d\\ude00":"b"}}'),
        ("control character", '{"__metadata__":{"\x01":"b"}}'), ("escaped control", '{"__metadata__":{"\\u0001":"b"}}'),
        ("escaped NUL", '{"__metadata__":{"\\u0000":"b"}}'), ("DEL", '{"__metadata__":{"\x7f":"b"}}'),
        ("bad escape", '{"__metadata__":{"\\x41":"b"}}'), ("single quotes", "{'__metadata__':{}}"), ("comment", "{}/**/"),
        ("trailing comma", '{"__metadata__":{},}'), ("unquoted key", "{__metadata__:{}}"), ("cut object", '{"__metadata__":{}'),
        ("metadata", '{"__metadata__":{"format":"pt"}}'), ("metadata empty", '{"__metadata__":{}}'),
        ("metadata null", '{"__metadata__":null}'), ("metadata number", '{"__metadata__":1}'),
        ("metadata text", '{"__metadata__":"x"}'), ("metadata array", '{"__metadata__":[]}'),
        ("metadata true", '{"__metadata__":true}'), ("metadata value number", '{"__metadata__":{"a":1}}'),
        ("metadata value null", '{"__metadata__":{"a":null}}'), ("metadata value object", '{"__metadata__":{"a":{}}}'),
        ("metadata value array", '{"__metadata__":{"a":["b"]}}'), ("metadata key twice", '{"__metadata__":{"a":"b","a":"c"}}'),
        ("metadata twice", '{"__metadata__":{},"__metadata__":{}}'),
        ("metadata null twice", '{"__metadata__":null,"__metadata__":null}'),
        ("metadata bad then good", '{"__metadata__":1,"__metadata__":{}}'),
    ]:
        yield "json " + label, pack(header)
    # Tensor entries.
    for label, value in [
        ("null", "null"), ("number", "1"), ("text", '"F32"'), ("true", "true"), ("empty object", "{}"), ("empty array", "[]"),
        ("array form", '["F32",[1],[0,4]]'), ("array of two", '["F32",[1]]'), ("array of four", '["F32",[1],[0,4],1]'),
        ("array in another order", '[[1],"F32",[0,4]]'), ("array of objects", '[{"F32":null},[1],[0,4]]'),
        ("no dtype", '{"shape":[1],"data_offsets":[0,4]}'), ("no shape", '{"dtype":"F32","data_offsets":[0,4]}'),
        ("no offsets", '{"dtype":"F32","shape":[1]}'), ("other order", '{"data_offsets":[0,4],"shape":[1],"dtype":"F32"}'),
        ("extra field", '{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":[{"y":null}]}'),
        ("extra field first", '{"x":{"dtype":"F16"},"dtype":"F32","shape":[1],"data_offsets":[0,4]}'),
        ("extra field twice", '{"x":1,"dtype":"F32","shape":[1],"x":2,"data_offsets":[0,4]}'),
        ("extra 1e999", '{"x":1e999,"dtype":"F32","shape":[1],"data_offsets":[0,4]}'),
        ("extra 2^64", '{"x":18446744073709551616,"dtype":"F32","shape":[1],"data_offsets":[0,4]}'),
        ("extra -2^63-1", '{"x":-9223372036854775809,"dtype":"F32","shape":[1],"data_offsets":[0,4]}'),
        ("extra lone surrogate", '{"x":"\\ud800","dtype":"F32","shape":[1],"data_offsets":[0,4]}'),
        ("extra NaN", '{"x":NaN,"dtype":"F32","shape":[1],"data_offsets":[0,4]}'),
        ("dtype twice", '{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}'),
        ("shape twice", '{"dtype":"F32","shape":[1],"shape":[1],"data_offsets":[0,4]}'),
        ("offsets twice", '{"dtype":"F32","shape":[1],"data_offsets":[0,4],"data_offsets":[0,4]}'),
        ("upper case field", '{"Dtype":"F32","shape":[1],"data_offsets":[0,4]}'),
        ("dtype lower case", tensor("f32")), ("dtype unknown", tensor("F31")), ("dtype empty", tensor("")),
        ("dtype torch name", tensor("float32")), ("dtype F8_E4M3FN", tensor("F8_E4M3FN", "[4]")),
        ("dtype number", '{"dtype":1,"shape":[1],"data_offsets":[0,4]}'),
        ("dtype null", '{"dtype":null,"shape":[1],"data_offsets":[0,4]}'),
        ("dtype array", '{"dtype":["F32"],"shape":[1],"data_offsets":[0,4]}'),
        ("dtype object null", '{"dtype":{"F32":null},"shape":[1],"data_offsets":[0,4]}'),
        ("dtype object empty", '{"dtype":{},"shape":[1],"data_offsets":[0,4]}'),
        ("dtype object number", '{"dtype":{"F32":0},"shape":[1],"data_offsets":[0,4]}'),
        ("dtype object object", '{"dtype":{"F32":{}},"shape":[1],"data_offsets":[0,4]}'),
        ("dtype object two", '{"dtype":{"F32":null,"F16":null},"shape":[1],"data_offsets":[0,4]}'),
        ("dtype object unknown", '{"dtype":{"F31":null},"shape":[1],"data_offsets":[0,4]}'),
        ("shape null", tensor(shape="null")), ("shape number", tensor(shape="1")), ("shape object", tensor(shape="{}")),
        ("shape nested", tensor(shape="[[1]]")), ("shape -1", tensor(shape="[-1]")), ("shape 1.0", tensor(shape="[1.0]")),
        ("shape 1e0", tensor(shape="[1e0]")), ("shape text", tensor(shape='["1"]')), ("shape true", tensor(shape="[true]")),
        ("shape null inside", tensor(shape="[null]")), ("shape 01", tensor(shape="[01]")), ("shape +1", tensor(shape="[+1]")),
        ("shape 2^64", tensor(shape="[18446744073709551616]")), ("shape many ones", tensor(shape="[1,1,1,1,1,1,1,1,1]")),
        ("rank 0", tensor(shape="[]")), ("offsets null", tensor(offsets="null")), ("offsets object", tensor(offsets="{}")),
        ("offsets of one", tensor(offsets="[0]")), ("offsets of three", tensor(offsets="[0,4,4]")),
        ("offsets none", tensor(offsets="[]")), ("offsets -0", tensor(offsets="[-0,4]")),
        ("offsets -4", tensor(offsets="[-4,0]")), ("offsets 4.0", tensor(offsets="[0,4.0]")),
        ("offsets text", tensor(offsets='["0","4"]')), ("offsets 2^64", tensor(offsets="[0,18446744073709551616]")),
        ("offsets 2^64-1", tensor(offsets="[0,18446744073709551615]")), ("offsets reversed", tensor(offsets="[4,0]")),
        ("offsets not at 0", tensor(offsets="[1,5]")), ("offsets too long", tensor(offsets="[0,8]")),
        ("offsets too short", tensor(offsets="[0,3]")), ("shape too large", tensor(shape="[2]")),
        ("shape too small", tensor(shape="[0]")),
    ]:
        yield "tensor " + label, one(value)
    yield "zero sized", one(tensor(shape="[0]", offsets="[0,0]"), b"")
    yield "zero sized -0", one(tensor(shape="[-0]", offsets="[0,0]"), b"")
    yield "zero sized not at 0", one(tensor(shape="[0]", offsets="[4,4]"), b"")
    yield "zero, 2^63, 4", one(tensor(shape="[0,9223372036854775808,4]", offsets="[0,0]"), b"")
    yield "2^63, 4, zero", one(tensor(shape="[9223372036854775808,4,0]", offsets="[0,0]"), b"")
    yield "2^63, zero", one(tensor(shape="[9223372036854775808,0]", offsets="[0,0]"), b"")
    yield "2^64-1, zero", one(tensor(shape="[18446744073709551615,0]", offsets="[0,0]"), b"")
    yield "2^61 F32 overflows in bits", one(tensor(shape="[2305843009213693952]", offsets="[0,9223372036854775808]"), b"")
    yield "2^32 x 2^32", one(tensor(shape="[4294967296,4294967296]", offsets="[0,0]"), b"")
    for dtype, size in [("BOOL", 1), ("U8", 1), ("I8", 1), ("F8_E5M2", 1), ("F8_E4M3", 1), ("F8_E8M0", 1), ("F8_E4M3FNUZ", 1),
                        ("F8_E5M2FNUZ", 1), ("I16", 2), ("U16", 2), ("F16", 2), ("BF16", 2), ("I32", 4), ("U32", 4),
                        ("F32", 4), ("C64", 8), ("F64", 8), ("I64", 8), ("U64", 8), ("C128", 16)]:
        yield "dtype " + dtype, one(tensor(dtype, "[2,3]", "[0,%d]" % (6 * size)), b"\0" * 6 * size)
    for dtype, count, size in [("F4", 2, 1), ("F4", 1, 1), ("F4", 3, 2), ("F4", 0, 0), ("F6_E2M3", 4, 3), ("F6_E2M3", 3, 3),
                               ("F6_E3M2", 8, 6), ("F6_E3M2", 2, 2)]:
        yield "%d of %s in %d" % (count, dtype, size), one(tensor(dtype, "[%d]" % count, "[0,%d]" % size), b"\0" * size)
    # Names.
    for label, name in [("empty", ""), ("NUL", "\\u0000"), ("dots", "../../etc/passwd"), ("quote", '\\"'), ("UTF-8", "\u00e9")]:
        yield "name " + label, one(ok, name=name)
    # Several tensors.
    def two(a, b, data=d8, names=("a", "b")):
        return pack('{"%s":%s,"%s":%s}' % (names[0], a, names[1], b), data)
    at4 = tensor(offsets="[4,8]")
    yield "two", two(ok, at4)
    yield "two, text order", two(at4, ok)
    yield "two, a hole", two(ok, tensor(offsets="[8,12]"), b"\0" * 12)
    yield "two, an overlap", two(ok, tensor(offsets="[2,6]"), b"\0" * 6)
    yield "two, the same bytes", two(ok, ok, d4)
    yield "two, none at 0", two(at4, tensor(offsets="[8,12]"), b"\0" * 12)
    yield "two, data short", two(ok, at4, b"\0" * 7)
    yield "two, data long", two(ok, at4, b"\0" * 9)
    empty0, empty4, empty2 = (tensor(shape="[0]", offsets="[%d,%d]" % (n, n)) for n in (0, 4, 2))
    yield "empty in front", two(empty0, ok, d4)
    yield "empty at the end", two(ok, empty4, d4)
    yield "empty inside", two(ok, empty2, d4)
    yield "two empty at 0", two(empty0, empty0, b"")
    yield "name twice, same", two(ok, ok, d4, ("a", "a"))
    yield "name twice, last good", two(tensor(shape="[9]", offsets="[0,36]"), ok, d4, ("a", "a"))
    yield "name twice, first good", two(ok, tensor(shape="[9]", offsets="[0,36]"), d4, ("a", "a"))
    yield "name twice, first unreadable", two(tensor("F31"), ok, d4, ("a", "a"))
    yield "name twice by escape", two(ok, ok, d4, ("a", "\\u0061"))
    yield "metadata and tensor", pack('{"__metadata__":{"format":"pt"},"a":%s}' % ok, d4)
    yield "metadata by escape", pack('{"__metadata__":{},"\\u005f_metadata__":{}}')
    yield "misaligned", two(tensor("U8", "[1]", "[0,1]"), tensor(offsets="[1,5]"), b"\0" * 5)
    for pad in range(1, 9):
        yield "padding %d" % pad, pack('{"a":%s}' % ok + " " * pad, d4)
    # Depth: the header and the tensor are two levels.
    for depth in (1, 100, 124, 125, 126, 127, 200):
        for begin, end, label in [("[", "]", "arrays"), ('{"y":', "}", "objects")]:
            deep = begin * depth + ("1" if begin != "[" else "") + end * depth
            yield "%d %s deep" % (depth, label), one('{"x":%s,"dtype":"F32","shape":[1],"data_offsets":[0,4]}' % deep)
    yield "5000 deep", one("[" * 5000)


PIECES = ["0", "1", "2", "4", "-0", "-1", "1.0", "1e0", "18446744073709551615", "18446744073709551616", "9223372036854775808",
          "null", "true", '"F32"', '"BF16"', '"U8"', '"F4"', '"x"', '""', "[]", "{}", "[0]", "[1,2]", '{"F32":null}', ",", ":", "[",
          "]", "{", "}", '"', '"a":', '"shape":', '"dtype":', '"data_offsets":', '"__metadata__":', " ", "\n", "\\u0000"]


FIELDS = ['"shape"', '"dtype"', '"data_offsets"']
DTYPES = ["F32", "I32", "U32", "F16", "BF16", "I16", "U16", "U8", "I8", "BOOL", "F8_E4M3", "F4", "I64", "F64", "U64"]


def any_value(rng, depth):
    """A value in JSON, or nearly."""
    if depth < 3 and rng.random() < 0.4:
        values = [any_value(rng, depth + 1) for _ in range(rng.randrange(3))]
        if rng.random() < 0.5:
            return "[" + ",".join(values) + "]"
        return "{" + ",".join('"%s":%s' % (rng.choice(["a", "b", "\\n", "\\ud83d"]), v) for v in values) + "}"
    return rng.choice(["0", "-0", "1.5e3", "-1", "1e400", "-9223372036854775809", "18446744073709551616", "null", "true", "false",
                       '""', '"\\u00e9"', '"\\ud83d\\ude00"', '"\\udc00"', "01", "1.", "nul", "'x'", '"\t"'])


def seeds():
    yield '{"a":%s}' % tensor(), 4
    yield '{"a":%s,"b":%s}' % (tensor("BF16", "[2]", "[0,4]"), tensor("U8", "[2,2]", "[4,8]")), 8
    yield '{"__metadata__":{"k":"v"},"a":%s}' % tensor("F4", "[2,2]", "[0,2]"), 2
    yield '{"b":["I64",[1],[0,8]],"a":%s}' % tensor(shape="[0,3]", offsets="[8,8]"), 8
    yield '{"a":{"dtype":"F16","x":[1,{"y":2}],"shape":[],"data_offsets":[0,2]}}', 2


def tokens_of(text):
    out, i = [], 0
    while i < len(text):
        j = i + 1
        if text[i] == '"':
            j = text.index('"', i + 1) + 1
        elif text[i].isdigit():
            while j < len(text) and text[j].isdigit():
                j += 1
        out.append(text[i:j])
        i = j
    return out


def mutated():
    rng = random.Random(SEED)
    base = list(seeds())
    for number in range(MUTATIONS):
        header, size = rng.choice(base)
        kind = rng.choice(["token", "token", "number", "swap", "drop", "double", "byte", "frame", "space", "extra", "dtype"])
        tokens = tokens_of(header)
        data = size
        for _ in range(rng.choice([1, 1, 1, 2])):
            at = rng.randrange(len(tokens))
            if kind == "token":
                tokens[at] = rng.choice(PIECES)
            elif kind == "number":
                numbers = [i for i, t in enumerate(tokens) if t.isdigit()] or [at]
                tokens[rng.choice(numbers)] = str(rng.choice([0, 1, 2, 3, 4, 6, 8, 2**63, 2**64 - 1]))
            elif kind == "swap":
                to = rng.randrange(len(tokens))
                tokens[at], tokens[to] = tokens[to], tokens[at]
            elif kind == "drop":
                del tokens[at]
            elif kind == "space":
                tokens.insert(at, rng.choice([" ", "\n", "\t", "\r", "\f", "\u00a0"]))
            elif kind == "extra":
                commas = [i for i, t in enumerate(tokens) if t == "," and tokens[i + 1] in FIELDS]
                tokens.insert(rng.choice(commas), ',"%s":%s' % (rng.choice("xyz"), any_value(rng, 0)))
            elif kind == "dtype":
                dtypes = [i for i, t in enumerate(tokens) if t.strip('"') in DTYPES]
                tokens[rng.choice(dtypes)] = '"%s"' % rng.choice(DTYPES)
            elif kind == "double":
                tokens.insert(at, tokens[rng.randrange(len(tokens))])
        if kind == "number":
            data = rng.choice([size, size, 0, 4, 8, 16])
        raw = pack("".join(tokens), b"\0" * data)
        if kind == "byte":
            raw = bytearray(raw)
            for _ in range(rng.randrange(1, 4)):
                raw[rng.randrange(8, len(raw))] = rng.choice([0, 0x20, 0x2C, 0x30, 0x31, 0x7D, 0x80, 0xFF, rng.randrange(256)])
            raw = bytes(raw)
        if kind == "frame":
            raw = bytearray(raw)
            change = rng.choice(["cut", "grow", "length"])
            if change == "cut":
                raw = raw[: rng.randrange(len(raw))]
            elif change == "grow":
                raw += bytes(rng.randrange(1, 9))
            else:
                raw[rng.randrange(8)] ^= 1 << rng.randrange(8)
            raw = bytes(raw)
        yield "%s %d" % (kind, number), raw


# What a fuzzer found that takes another way through our reader (tests/fuzz).
def fuzzed():
    folder = Path(__file__).parents[2] / "fuzz/corpus/safetensors_header"
    for path in sorted(folder.iterdir()):
        yield "fuzz " + path.name, path.read_bytes()


def verdict(raw):
    try:
        safetensors.deserialize(raw)
        return "accept"
    except safetensors.SafetensorError:
        return "reject"


def main():
    lines, seen = [], set()
    for name, raw in [*by_hand(), *mutated(), *fuzzed()]:
        if raw in seen:
            continue
        seen.add(raw)
        lines.append("%s\t%s\t%s" % (verdict(raw), name, base64.b64encode(raw).decode()))
    head = "# Made by make_verdicts.py with safetensors %s: verdict, name, file in base64." % safetensors.__version__
    Path(__file__).with_name("verdicts.txt").write_text("\n".join([head, *lines]) + "\n")
    print(len(lines), "cases,", sum(line.startswith("accept") for line in lines), "accepted")


if __name__ == "__main__":
    main()
