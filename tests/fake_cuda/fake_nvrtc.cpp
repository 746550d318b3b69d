/* NVRTC, as CuPy uses it: compile.py does the work, and what it makes is a library of the host. */
#include <stdlib.h>
#include <string.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

struct Program {
    std::string source, log, library;
    std::vector<std::string> names, lowered;
};
typedef Program *nvrtcProgram;
typedef int nvrtcResult;
enum { NVRTC_COMPILATION = 6 };

static std::string read_file(const std::string &path)
{
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
}
API nvrtcResult nvrtcVersion(int *major, int *minor)
{
    *major = 12;
    *minor = 9;
    return 0;
}
API const char *nvrtcGetErrorString(nvrtcResult) { return "NVRTC_ERROR_COMPILATION"; }
API nvrtcResult nvrtcGetNumSupportedArchs(int *count)
{
    *count = 1;
    return 0;
}
API nvrtcResult nvrtcGetSupportedArchs(int *out)
{
    *out = 90;
    return 0;
}
API nvrtcResult nvrtcCreateProgram(nvrtcProgram *out, const char *source, const char *, int, const char *const *,
                                   const char *const *)
{
    *out = new Program{source, "", "", {}, {}};
    return 0;
}
API nvrtcResult nvrtcDestroyProgram(nvrtcProgram *program)
{
    delete *program;
    return 0;
}
API nvrtcResult nvrtcAddNameExpression(nvrtcProgram program, const char *name)
{
    program->lowered.push_back("instance_" + std::to_string(program->names.size()));
    program->names.push_back(name);
    return 0;
}
API nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int count, const char *const *options)
{
    std::string folder = std::string(getenv("FAKE_CUDA_CACHE")) + "/program-XXXXXX";
    if (!mkdtemp(folder.data())) return NVRTC_COMPILATION;
    std::ofstream(folder + "/source") << program->source;
    std::ofstream told(folder + "/options"), names(folder + "/names");
    for (int i = 0; i < count; i++) told << options[i] << "\n";
    for (const std::string &name : program->names) names << name << "\n";
    told.close();
    names.close();
    std::string clean = "env -u FAKE_CUDA -u LD_LIBRARY_PATH -u PYTHONPATH ";
    std::string command = clean + "python3 \"$FAKE_CUDA_COMPILE\" " + folder + " 2> " + folder + "/log";
    int status = system(command.c_str());
    program->log = read_file(folder + "/log");
    program->library = read_file(folder + "/library");
    return system(("rm -r " + folder).c_str()) || status ? NVRTC_COMPILATION : 0;
}
API nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, size_t *size)
{
    *size = program->library.size();
    return 0;
}
API nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char *out)
{
    memcpy(out, program->library.data(), program->library.size());
    return 0;
}
API nvrtcResult nvrtcGetPTXSize(nvrtcProgram program, size_t *size) { return nvrtcGetCUBINSize(program, size); }
API nvrtcResult nvrtcGetPTX(nvrtcProgram program, char *out) { return nvrtcGetCUBIN(program, out); }
API nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, size_t *size)
{
    *size = program->log.size() + 1;
    return 0;
}
API nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char *out)
{
    strcpy(out, program->log.c_str());
    return 0;
}
API nvrtcResult nvrtcGetLoweredName(nvrtcProgram program, const char *name, const char **out)
{
    for (size_t i = 0; i < program->names.size(); i++)
        if (program->names[i] == name) *out = program->lowered[i].c_str();
    return 0;
}
