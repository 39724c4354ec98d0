"""The gateway: agents reach their providers through it by changing one base URL."""
