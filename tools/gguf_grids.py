"""Prints the tables of src/quant/gguf_grids.cc from the `gguf` package's quants.py (0.19.0).

The package packs a grid entry as hexadecimal digits; here it becomes one integer, 2 bits (or, for
the IQ3 types, 4 bits) an element, first element lowest.
"""

from gguf import quants

TABLES = [
    ("Iq2Xxs", quants.IQ2_XXS), ("Iq2Xs", quants.IQ2_XS), ("Iq2S", quants.IQ2_S),
    ("Iq3Xxs", quants.IQ3_XXS), ("Iq3S", quants.IQ3_S), ("Iq1S", quants.IQ1_S),
]


def entries(kind):
    kind.init_grid()
    bits = 2 if kind.grid_shape[1] == 8 else 4
    for row in kind.grid.reshape(kind.grid_shape):
        yield sum(kind.grid_map.index(int(v)) << (bits * i) for i, v in enumerate(row))


for name, kind in TABLES:
    values = [f"{v:#06x}" for v in entries(kind)]
    print(f"const uint16_t kGrid{name}[{len(values)}] = {{")
    for i in range(0, len(values), 12):
        print("    " + ", ".join(values[i : i + 12]) + ",")
    print("};\n")
