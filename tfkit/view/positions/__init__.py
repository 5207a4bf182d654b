"""Position schemes as pictures: tables, curves, similarities, angles, biases. Needs matplotlib."""
