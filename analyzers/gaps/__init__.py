"""Gaps in which a device does nothing: where they are, what the host did, what MoE made wait."""
