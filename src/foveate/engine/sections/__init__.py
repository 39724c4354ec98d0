"""Sections that an agent's requests are given: files, skills, memory, the time and more, each in its place."""
