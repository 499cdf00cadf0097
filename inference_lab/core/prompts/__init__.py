"""Core: what a client asks with: messages, tool calls, echo-directives, and what the helper endpoints say."""
