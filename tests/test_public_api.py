"""The names that users and plugin authors import."""

import tfkit
import tfkit.plugin


def test_every_public_name_exists_and_the_list_is_sorted():
    assert list(tfkit.__all__) == sorted(tfkit.__all__)
    for name in tfkit.__all__:
        assert getattr(tfkit, name) is not None


def test_build_stays_a_function_after_everything_was_imported():
    import tfkit.builder
    import tfkit.store

    assert callable(tfkit.build)
    assert tfkit.build is tfkit.builder.build
    assert tfkit.load is tfkit.store.load


def test_every_name_that_plugins_are_promised_exists_and_the_list_is_sorted():
    assert list(tfkit.plugin.__all__) == sorted(tfkit.plugin.__all__)
    for name in tfkit.plugin.__all__:
        assert getattr(tfkit.plugin, name) is not None


def test_the_version_is_that_of_the_distribution():
    from importlib.metadata import version

    assert tfkit.__version__ == version("tfkit")
