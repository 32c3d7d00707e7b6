"""The upstream patch set: SGLang's own files, changed so that they call the policy without hooks."""
