"""What happened? Records of dispatches that can be kept, sent and looked at later."""
