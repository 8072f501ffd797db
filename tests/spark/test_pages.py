"""README's Spark code, in the session of the tests; that of all pages: test_readme.py."""

from test_readme import blocks, check_printed


def test_spark_code_of_readme_prints_what_its_comments_say(spark, tmp_path, capsys):
    code = "\n".join(param.values[0] for param in blocks("spark"))
    exec(code.replace("/tmp/", f"{tmp_path}/"), {"__name__": "__main__"})  # noqa: S102, S108
    check_printed(code, capsys.readouterr().out)
