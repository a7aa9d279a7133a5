"""Options of all tests."""


def pytest_addoption(parser):
    parser.addoption("--refresh-golden", action="store_true", help="write the texts that emitters print anew")
