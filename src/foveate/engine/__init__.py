"""The engine: the pipeline that every request passes, and the work after its response."""
