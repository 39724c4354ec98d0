"""Sections that are injected into requests: files, skills, memory, time and others."""
