"""The control plane: stores, their text form, the driver that decides, replay and ledger."""
