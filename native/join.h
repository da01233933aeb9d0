// Names that differ by the set of instructions that a file is compiled for.
#pragma once

#define OPDUMP_JOIN_(a, b) a##b
#define OPDUMP_JOIN(a, b) OPDUMP_JOIN_(a, b)
