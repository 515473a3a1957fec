"""Build maca_provider/libmaca.so: plain C++17 against one header of tefl. No torch, no Python in it."""

import glob

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

import tefl


class BuildLibrary(build_ext):
    """build_ext names what it builds like a Python module; this is a shared library, so libmaca.so it is."""

    def get_ext_filename(self, ext_name: str) -> str:
        return ext_name.replace(".", "/") + ".so"


setup(
    ext_modules=[
        Extension(
            "maca_provider.libmaca",
            sorted(glob.glob("src/*.cpp")),
            include_dirs=[tefl.get_include()],
            # Only what a header marks TEFL_PROVIDER_EXPORT is to be seen from outside.
            extra_compile_args=["-std=c++17", "-O3", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror"],
            libraries=["pthread", "rt"],
            language="c++",
        )
    ],
    cmdclass={"build_ext": BuildLibrary},
)
