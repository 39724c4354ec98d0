"""Reading request bodies within limits of size, time and memory."""
