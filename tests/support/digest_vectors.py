#!/usr/bin/env python3
"""The fixed vectors of tests/unit/digest_test.cpp, from the digest's definition in plain integers.

Shares nothing with src/core/digest.cpp: `python3 tests/support/digest_vectors.py` prints the table to paste there.
"""

MASK = (1 << 64) - 1
C = 0x9E3779B97F4A7C15


def mix(z):
    z ^= z >> 30
    z = z * 0xBF58476D1CE4E5B9 & MASK
    z ^= z >> 27
    z = z * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


def line_digest(line, v):
    total = 0
    for i in range(0, len(line), 8):
        x = int.from_bytes(line[i:i + 8].ljust(8, b"\0"), "little")
        keyed = x ^ mix(i // 8 + 1)
        total += x + (keyed & 0xFFFFFFFF) * (keyed >> 32)
    return mix((total + (v + 1) * C) & MASK)


def lines_digest(data, line_bytes):
    lines = [data[i:i + line_bytes] for i in range(0, len(data), line_bytes)]
    return sum(line_digest(line, v) for v, line in enumerate(lines)) & MASK


def block_digest(recurrent, conv, heads, row_bytes, column_bytes):
    head_bytes = len(recurrent) // heads
    head = [lines_digest(recurrent[h * head_bytes:(h + 1) * head_bytes], row_bytes) for h in range(heads)]
    convolution = lines_digest(conv, column_bytes)
    block = sum(mix((d + (h + 1) * C) & MASK) for h, d in enumerate(head)) + mix((convolution + C) & MASK)
    return head, convolution, block & MASK


def pattern(size, seed):
    """Bytes of a 32-bit linear congruential generator, the top byte of each state."""
    state, out = seed, bytearray()
    for _ in range(size):
        state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
        out.append(state >> 24)
    return bytes(out)


def main():
    print("mix", *(f"0x{mix(z):016X}u" for z in (0, 1, C, MASK)))
    for size, v in ((0, 0), (1, 0), (7, 3), (8, 0), (9, 1), (256, 0), (512, 127), (40000, 2)):
        print(f"{{{size}, {v}, 0x{line_digest(pattern(size, 7), v):016X}u}},")
    for name, h, hv, k, v, w, state, conv in (("f32 state, bf16 conv", 1, 2, 3, 5, 4, 4, 2),
                                              ("bf16 state, f32 conv", 2, 4, 8, 8, 3, 2, 4),
                                              ("all zero", 1, 2, 3, 5, 4, 4, 2)):
        dim = 2 * h * k + hv * v
        sizes = (hv * v * k * state, (w - 1) * dim * conv)
        blank = name == "all zero"
        recurrent, window = (bytes(s) if blank else pattern(s, i + 1) for i, s in enumerate(sizes))
        heads, convolution, block = block_digest(recurrent, window, hv, k * state, dim * conv)
        print(name, *(f"0x{d:016X}u," for d in heads), f"conv 0x{convolution:016X}u block 0x{block:016X}u",
              f"share(5) 0x{mix((block + 6 * C) & MASK):016X}u")


if __name__ == "__main__":
    main()
