"""The checks of `gymnast check` and `gymnast sandbox doctor`; start reading at `catalogue.py`."""
