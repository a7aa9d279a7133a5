"""May this program run here, and with this config?"""
