"""What trtexec is told, and what it writes."""
