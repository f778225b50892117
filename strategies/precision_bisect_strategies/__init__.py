"""The strategies that come with precision-bisect; the core finds them by entry point."""
