"""What runs inside a box: the standard library of Python >= 3.8 only, and imports of this room only."""
