"""Dumps that Ascend devices write: MindSpore's asynchronous dump, acl dumps of offline models, single operators.

    {path}/[{step_id}/]{time}/{device_id}[/{model_name}][/{model_id}][/{data_index}]/
        Conv2D.net_conv1.1.5.1732082705016774                              all tensors of an operator, or
        Conv2D.net_conv1.1.5.1732082705016774.output.0.NC1HWC0.npy         one of them, or
        Conv2D.net_conv1.1.5.1732082705016774.csv                          its statistics
        Opdebug.Node_OpDebug.59.5.1732082705016775                         an overflow file
        statistic.csv                                                      statistics of all operators
        mapping.csv                                                        long names

docs/device-dumps.md describes how each of them is read into a record.

`places` is imported whenever a dump is opened, the rest only for such a dump, so that commands start quickly.
"""
