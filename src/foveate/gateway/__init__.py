"""The gateway: an HTTP proxy between agents and their providers. Clients use it by changing one base URL."""
