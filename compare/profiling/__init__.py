"""Where an implementation's time goes: what ``python -m compare profile`` does."""
