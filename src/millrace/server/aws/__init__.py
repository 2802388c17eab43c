"""What all APIs of AWS share: who signed, how calls are read and answered."""
