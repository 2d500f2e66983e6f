"""An ordinary module as a list of layers: its graph by torch.export, cut into parts."""
