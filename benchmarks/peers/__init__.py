"""Other people's tools on the zoo's networks, beside ours, before one independent judge."""
