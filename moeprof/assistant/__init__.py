"""What a run answers to a coding assistant: read-only, in small answers, each with its trust.

Only `moeprof.assistant.server` and `moeprof.assistant.tools` need the extra ``mcp``.
"""
