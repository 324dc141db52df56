"""Callbacks for foreign trainers: `afec.integrations.transformers` and `afec.integrations.lightning`.

Neither is imported before it is asked for, so `import afec` needs neither of their packages.
"""
