"""Typed graphs: a plan written into the model as types, for engines that do what types say."""
