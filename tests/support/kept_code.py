"""A tier below memory that is no disk."""


class KeptCode:
    """Under the digest of the key, with how often it was asked and what was called besides."""

    def __init__(self):
        self.kept, self.loads, self.calls = {}, 0, []

    def load(self, key):
        self.loads += 1
        return self.kept.get(key.digest())

    def save(self, key, payload):
        self.kept[key.digest()] = payload

    def give_up(self, key):
        self.calls.append("give up")

    def reject(self, key):
        self.calls.append("reject")

    def holds(self, key):
        return key.digest() in self.kept

    def explain(self, key):
        return None

    def metrics(self):
        return {"kept": len(self.kept)}
