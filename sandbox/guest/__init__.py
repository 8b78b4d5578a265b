"""The program that runs inside a box. It imports only itself and the standard library of Python >= 3.8."""
