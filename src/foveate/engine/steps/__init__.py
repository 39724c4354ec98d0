"""The steps of the pipeline, one module each.

They run in this order: session, compactions (apply, then limit turns), count, overflow, sections, thinking,
tools, cache, savings, sent_messages, usage, caps, keepalive.

A step that fails is skipped, and the next one goes on with the request as it is. So each step relies only on
what it checks itself.
"""
